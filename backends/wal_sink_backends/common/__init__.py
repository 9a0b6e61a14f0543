"""What several backends share: options in URLs, secrets of the environment, pace, texts, warnings about durability."""
