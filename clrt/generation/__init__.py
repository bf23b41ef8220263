"""Text from language models.

`TextGenerator` is what users touch. A request becomes a `GenerationState`; the `Scheduler` runs
several together on the `DecoderEngine`, which has a decoder on a device and its cache. Options,
chat templates, text of tokens, stops and constraints know no device and no graph.
"""
