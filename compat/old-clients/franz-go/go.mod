module duramen/compat/old-clients/franz-go

go 1.26.0
