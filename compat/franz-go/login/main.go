// A client of ../security: login BOOTSTRAP CA USER PASSWORD TOPIC VALUE. It writes the value, reads it back and prints it; an error ends it.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	. "duramen/compat/gosuite"
)

func main() {
	bootstrap, ca, user, password, topic, value := os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5], os.Args[6]
	client := Must(kgo.NewClient(
		kgo.SeedBrokers(bootstrap), kgo.DialTLSConfig(Trusted(ca)),
		kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha512Mechanism()),
		kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	))
	defer client.Close()
	Done(client.Ping(context.Background()))
	Done(client.ProduceSync(context.Background(), &kgo.Record{Topic: topic, Value: []byte(value)}).FirstErr())
	fetches := client.PollFetches(context.Background())
	Done(fetches.Err())
	fmt.Println(string(fetches.Records()[0].Value))
}
