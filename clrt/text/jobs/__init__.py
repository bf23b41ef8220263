"""Files of texts to files of vectors, in parts that survive the death of the process."""
