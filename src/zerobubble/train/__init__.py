"""How does the reference trainer train a transformer on text through a pipeline?"""
