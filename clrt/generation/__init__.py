"""Text generation by language models.

`TextGenerator` is the user's class. A request becomes a `GenerationState`. The `Scheduler` batches
several generation states on the `DecoderEngine`, which holds a decoder on a device and its KV
cache. Options, chat templates, detokenization, stop strings and constraints depend on neither
device nor graph.
"""
