// A client of ../security: login BOOTSTRAP CA USER PASSWORD TOPIC VALUE. It writes the value, reads it back and prints it; an error ends it.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl/scram"

	. "duramen/compat/gosuite"
)

func main() {
	bootstrap, ca, user, password, topic, value := os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5], os.Args[6]
	secure, mechanism := Trusted(ca), Must(scram.Mechanism(scram.SHA512, user, password))
	writer := &kafka.Writer{
		Addr: kafka.TCP(bootstrap), Topic: topic, BatchTimeout: time.Millisecond, RequiredAcks: kafka.RequireAll,
		Transport: &kafka.Transport{TLS: secure, SASL: mechanism},
	}
	Done(writer.WriteMessages(context.Background(), kafka.Message{Value: []byte(value)}))
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{bootstrap}, Topic: topic, MaxWait: 200 * time.Millisecond,
		Dialer: &kafka.Dialer{TLS: secure, SASLMechanism: mechanism, Timeout: 10 * time.Second},
	})
	fmt.Println(string(Must(reader.ReadMessage(context.Background())).Value))
}
