"""The backends, one folder each; they implement the vocabulary of llmgen.model.ops."""
