"""Sizes of the paged KV cache, on which ops and the users of a graph agree."""

from __future__ import annotations

PAGE_TOKENS = 32
"""Token positions of a page. A multiple of the SIMD lanes; small, since a sequence leaves part of
its last page empty, and sequences share whole pages of a common prefix."""
MAX_SLABS = 6
"""Number of slab inputs: each growth of a cache adds a slab, so that existing pages are not
copied."""
MAX_HEAD_SIZE, HEAD_SIZE_STEP = 512, 4
"""Head sizes in elements that kernels support: multiples of HEAD_SIZE_STEP up to the maximum, since
kernels hold a head in private memory."""
