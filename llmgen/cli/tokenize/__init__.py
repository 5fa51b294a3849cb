"""``llmgen tokenize``: text to token ids, and back."""
