"""What computes: one folder a device.  The vocabulary they share is llmgen.model.ops."""
