"""Classical machine learning."""
