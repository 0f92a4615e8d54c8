"""Tool calls, the tools they name, and the protocols that write them."""
