"""Matrix products, and ops on matrices such as Det and Inverse."""
