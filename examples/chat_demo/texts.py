"""Training data of the toy model: questions, and answers from Python's standard library."""

from __future__ import annotations

import ast
import codecs
import importlib.util
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MODULES = (
    *("abc", "argparse", "ast", "asyncio", "base64", "bisect", "calendar", "codecs", "collections"),
    *("contextlib", "copy", "csv", "ctypes", "datetime", "decimal", "difflib", "dis", "enum"),
    *("fractions", "functools", "getpass", "glob", "gzip", "hashlib", "heapq", "html", "http"),
    *("inspect", "io", "ipaddress", "json", "keyword", "locale", "logging", "mimetypes"),
    *("operator", "os", "pathlib", "pickle", "platform", "pprint", "queue", "random", "re"),
    *("sched", "secrets", "shelve", "shlex", "shutil", "socket", "sqlite3", "statistics"),
    *("string", "struct", "subprocess", "tarfile", "tempfile", "textwrap", "threading", "timeit"),
    *("token", "trace", "turtle", "typing", "unittest", "uuid", "warnings", "wave", "webbrowser"),
    *("zipfile", "zoneinfo"),
)
_MODULE_QUESTIONS = (
    *("What is {}?", "What does {} do?", "Tell me about {}.", "{}", "What is the module {} for?"),
    *("Explain {} please.", "What is {}", "{}?", "Do you know {}?", "Explain the module {}."),
    *("What can I do with {}?", "Can you tell me what {} is?"),
)
_ZEN_QUESTIONS = (
    *("Tell me the Zen of Python.", "What is the Zen of Python?", "zen", "Zen", "Zen of Python"),
    *("the Zen of Python", "Recite the Zen of Python.", "import this"),
)
_HELLOS = ("Hello", "Hello!", "Hi", "hi", "Hi!", "hello", "Good morning!", "Hey")
_SELVES = (
    *("Who are you?", "What are you?", "What can you do?", "help", "Help!", "What do you know?"),
    *("How are you?", "Are you a language model?", "Who made you?", "What is your name?"),
)
_THANKS = ("Thanks", "Thank you!", "thank you", "Thanks!", "Bye", "Good bye!")
_LONGEST = 100


@dataclass(frozen=True)
class Fact:
    """An answer and questions for it.

    Attributes:
        times: Sampling weight relative to other facts.
    """

    questions: tuple[str, ...]
    answer: str
    times: int = 1


def facts(modules: tuple[str, ...] = MODULES) -> list[Fact]:
    """Returns all facts of the training data.

    Args:
        modules: Those whose docstrings are among it, as far as they lie here with their sources.
    """
    made = [
        Fact(_HELLOS, "Hello! Ask me about a module of Python, such as json.", 3),
        Fact(_SELVES, "I am a toy. I know some modules of Python, and the Zen of Python.", 2),
        Fact(_THANKS, "You are welcome.", 2),
    ]
    if zen := _zen():
        made.append(Fact(_ZEN_QUESTIONS, zen, 2))
    for name in modules:
        if saying := _saying(name):
            made.append(Fact(tuple(q.format(name) for q in _MODULE_QUESTIONS), saying))
    return made


def _source(name: str) -> str:
    """Returns the source of a module without importing it; "" if there is none."""
    try:
        spec = importlib.util.find_spec(name)
        path = Path(spec.origin or "") if spec is not None else Path()
        return path.read_text("utf-8") if path.suffix == ".py" else ""
    except (OSError, ValueError, ImportError):
        return ""


def _saying(name: str) -> str:
    """Returns the first sentence of a module's docstring."""
    text = ast.get_docstring(ast.parse(_source(name))) or ""
    first = next((" ".join(p.split()) for p in text.split("\n\n") if "~~" not in p), "")
    for joint in (" -- ", " - ", ": "):
        head, found, rest = first.partition(joint)
        if found and name in head.lower() and len(head.split()) < 3:
            first = rest
    first = re.sub(r" ?<http\S*>", "", first)
    first = re.split(r"\.\s+(?=[A-Z])", first)[0].rstrip(".:")
    cut = textwrap.shorten(first, _LONGEST, placeholder=" …")
    end = "" if cut.endswith("…") else "."
    return f"{cut[:1].upper()}{cut[1:]}{end}" if cut else ""


def _zen() -> str:
    """The Zen of Python, from the module `this`, which has it in rot13 and prints it."""
    for node in ast.parse(_source("this")).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            return codecs.decode(str(node.value.value), "rot13").partition("\n\n")[2].strip()
    return ""


def lines(taught: list[Fact]) -> Iterator[str]:
    """Yields all texts, to train a tokenizer on."""
    for fact in taught:
        yield from fact.questions
        yield fact.answer
