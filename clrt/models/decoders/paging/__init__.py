"""Decoders that are given their past, rewritten to keep it in pages (`page_decoder`)."""
