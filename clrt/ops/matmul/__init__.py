"""Matrix products, and what is made of them."""
