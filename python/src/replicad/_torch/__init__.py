"""What a session knows of torch: the tensors that a training state is made of, and the small values beside them."""
