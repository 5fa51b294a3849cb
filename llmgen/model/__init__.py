"""What a model is: its hyperparameters, its weights, its forward pass; no device computes here."""
