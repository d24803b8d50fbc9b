// Produces until its standard input ends, with the client's own defaults (idempotent, acks=all), and prints what it was
// told: endless BOOTSTRAP TOPIC PARTITION NAME. The lines are those of kill9/confluent_producer.py.
package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	mathrand "math/rand"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const pause = 2 * time.Millisecond

func main() {
	bootstrap, topic, name := os.Args[1], os.Args[2], os.Args[4]
	partition, err := strconv.Atoi(os.Args[3])
	if err != nil {
		panic(err)
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(5*time.Millisecond),
		kgo.AlwaysRetryEOF(), // a broker that is killed right after it took a connection
		kgo.RetryBackoffFn(func(int) time.Duration { return 50 * time.Millisecond }),
	)
	if err != nil {
		panic(err)
	}
	var stop atomic.Bool
	go func() {
		io.ReadAll(os.Stdin)
		stop.Store(true)
	}()
	var untold atomic.Int64
	number := 0
	for ; !stop.Load(); number++ {
		size := 10 + mathrand.Intn(2000)
		if number%100 == 99 {
			size = 100_000 + mathrand.Intn(200_000)
		}
		value := make([]byte, size)
		rand.Read(value)
		sent, digest := number, sha256.Sum256(value)
		record := &kgo.Record{Topic: topic, Partition: int32(partition), Key: []byte(fmt.Sprintf("%s:%d", name, sent)), Value: value}
		untold.Add(1)
		client.Produce(context.Background(), record, func(record *kgo.Record, err error) {
			untold.Add(-1)
			if err != nil {
				fmt.Printf("fail %d %v\n", sent, err)
			} else {
				fmt.Printf("ack %d %d %x\n", sent, record.Offset, digest)
			}
		})
		time.Sleep(pause)
	}
	patience, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client.Flush(patience)
	fmt.Printf("end %d %d\n", number, untold.Load())
}
