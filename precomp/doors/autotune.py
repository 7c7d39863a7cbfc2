DOORS: tuple = ()
