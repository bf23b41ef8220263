"""Rewrites decoders with past inputs to a paged KV cache (`page_decoder`)."""
