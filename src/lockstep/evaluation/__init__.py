"""What trained models are measured by."""
