"""clrt's vectors in other packages: LangChain, LlamaIndex, Chroma. Each module imports its own."""
