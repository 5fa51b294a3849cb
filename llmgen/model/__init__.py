"""What a model is: hyperparameters, weights, states and forward pass, independent of any backend."""
