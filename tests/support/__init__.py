"""What several tests share: small worlds, servers, models and peers."""
