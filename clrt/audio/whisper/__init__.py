"""Speech to text by Whisper: an encoder of 30 s of sound, and a decoder of text and times."""
