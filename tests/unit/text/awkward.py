"""Texts on which tokenizers differ."""

from __future__ import annotations

TEXTS = (
    "",
    " ",
    "a",
    "Hello world",
    " Hello, y'all! How are you 😁 ?",
    "  two  spaces   three    ",
    "tab\tand\nnewline\r\n\n\n x\n ",
    "don't we'll I'M THEY'RE 'tis",
    "camelCase HTMLParser XMLHttpRequest",
    "12345678 3.14 1,000,000 ½ Ⅵ ٣",
    'a/b//c_d--e ===> {x: [1, 2]} `code` "quoted" ~|^$+<=>',
    "日本語のテキスト、ひらがなと漢字。한국어 中文字符",
    "naïve café über straße ÅÄÖ",
    "e\u0301 a\u0308 o\u0302\u0323 combining",
    "🙂🏽 👨\u200d👩\u200d👧 🇩🇪 ✅",
    "ﬁ ℌ ① Ａ１ \u00a0nbsp \u3000wide\u2029",
    "हिन्दी العربية עברית ไทย កាន់តែ",
    "нещо на Български Ελληνικά",
    "\x00nul \x1f \x7f \ufeff bom",
    "x" * 60,
    "<s> </s> [CLS] <0x41> <|end",
)
