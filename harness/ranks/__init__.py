"""One case on several ranks: a process each, a torch.distributed group between them."""
