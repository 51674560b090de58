"""How is an order of all ops made, forth or back in time, and what does it take?"""
