module duramen/compat/old-clients/sarama

go 1.26.0
