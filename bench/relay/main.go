// Relay forwards TCP connections, each byte later by the delay of its link, for benchmarks of distant nodes.
//
//	relay [--rate BYTES] 127.0.0.1:20001=127.0.0.1:20002,500[,metered]...
//
// Kernels without netem cannot delay packets, and that of the benchmarks' machine has none; so a process does it. To
// connect takes no time, which takes a round trip on a real network.
//
// Each link is LISTEN=TARGET,DELAY_US. All metered links share a wire of --rate bytes a second from their diallers to
// their targets. A line `N DELAY_US` on stdin changes the delay of the N-th link, from 0 on, and `rate BYTES` the rate; the
// answer on stdout is `done`. The first line there is `ready`. The relay ends with its stdin.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"time"
)

func main() {
	log.SetFlags(0)
	rate := flag.Int64("rate", 0, "bytes a second of all metered links together; 0 is any number")
	flag.Parse()
	relay, err := newRelay(*rate)
	if err != nil {
		log.Fatal(err)
	}
	for _, text := range flag.Args() {
		if err := listen(relay, text); err != nil {
			log.Fatalf("link %q: %v", text, err)
		}
	}
	go func() {
		log.Fatal(relay.run())
	}()
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var number int
		var us, rate int64
		if _, err := fmt.Sscanf(lines.Text(), "rate %d", &rate); err == nil && rate >= 0 {
			relay.meter.rate.Store(rate)
			fmt.Println("done")
			continue
		}
		if _, err := fmt.Sscanf(lines.Text(), "%d %d", &number, &us); err != nil || relay.delay(number, microseconds(us)) != nil {
			log.Fatalf("no link and delay, and no rate: %q", lines.Text())
		}
		fmt.Println("done")
	}
}

// listen begins a link that an argument describes.
func listen(relay *relay, text string) error {
	from, rest, isPair := strings.Cut(text, "=")
	fields := strings.Split(rest, ",")
	if !isPair || len(fields) < 2 {
		return fmt.Errorf("it is no LISTEN=TARGET,DELAY_US")
	}
	us, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return err
	}
	isMetered := len(fields) > 2 && fields[2] == "metered"
	_, err = relay.listen(from, fields[0], microseconds(us), isMetered)
	return err
}

func microseconds(us int64) time.Duration { return time.Duration(us) * time.Microsecond }
