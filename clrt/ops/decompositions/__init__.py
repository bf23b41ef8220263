"""What ops stand for: the registry, and its rules by who asks."""
