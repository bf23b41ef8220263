"""Embedding adapters for LangChain, LlamaIndex and Chroma, one module each."""
