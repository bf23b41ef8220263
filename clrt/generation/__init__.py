"""The host's side of text generation: options, chat templates, text of tokens, stops, constraints.

Nothing here knows a device or a graph.
"""
