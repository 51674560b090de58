"""How is the best schedule found, and how is it known how good it is?"""
