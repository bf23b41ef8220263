"""A toy language model, trained here in seconds, to chat with.

    python -m examples.chat_demo [--device cpu]

It learns by heart what Python's own modules say of themselves, and the Zen of Python. Nothing is
downloaded: the texts lie in the standard library.
"""
