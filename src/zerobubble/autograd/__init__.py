"""How is a backward pass done in two parts, B and W?"""
