module duramen/bench/relay

go 1.24
