"""Embedding jobs: files of texts to files of vectors, resumable after a crash."""
