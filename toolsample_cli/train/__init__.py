"""The GRPO step: advantage, batch and loss are pure; data, checkpoint and trainer carry them."""
