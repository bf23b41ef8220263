"""Speech to text by Whisper: an encoder of 30 s of audio, and a decoder of text and timestamps."""
