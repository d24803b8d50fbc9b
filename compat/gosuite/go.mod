module duramen/compat/gosuite

go 1.26.0
