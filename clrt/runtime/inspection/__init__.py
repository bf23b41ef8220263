"""What a model needs and does, told before it runs."""
