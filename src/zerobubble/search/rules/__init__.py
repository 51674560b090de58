"""Which preferences are worth a try when ops are listed, and how are they tuned?"""
