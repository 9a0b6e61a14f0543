"""What several tests share: worlds, servers, targets, processes."""
