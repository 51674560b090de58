"""How does an order become shorter by moves of single ops?"""
