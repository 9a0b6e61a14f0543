"""Helpers that several tests share: worlds, servers, targets, processes."""
