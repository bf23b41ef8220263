"""Text from language models.

`TextGenerator` is what users touch. A request becomes an `Answer`; the `Scheduler` runs answers
together on the `Engine`, which has a decoder on a device and its cache. Options, chat templates,
text of tokens, stops and constraints know no device and no graph.
"""
