// A client of ../security: login BOOTSTRAP CA USER PASSWORD TOPIC VALUE. It writes the value, reads it back and prints it; an error ends it.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"

	. "duramen/compat/gosuite"
)

// conversation is what Sarama leaves to its users, as its examples have it.
type conversation struct{ *scram.ClientConversation }

func (c *conversation) Begin(user, password, authzID string) error {
	client, err := scram.SHA512.NewClient(user, password, authzID)
	if err == nil {
		c.ClientConversation = client.NewConversation()
	}
	return err
}

func main() {
	bootstrap, ca, user, password, topic, value := os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5], os.Args[6]
	roots := x509.NewCertPool()
	Check(roots.AppendCertsFromPEM(Must(os.ReadFile(ca))), "no certificate in %s", ca)
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Net.TLS.Enable, config.Net.TLS.Config = true, &tls.Config{RootCAs: roots}
	config.Net.SASL.Enable, config.Net.SASL.User, config.Net.SASL.Password = true, user, password
	config.Net.SASL.Mechanism = sarama.SASLTypeSCRAMSHA512
	config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &conversation{} }
	config.Producer.Return.Successes = true
	client := Must(sarama.NewClient([]string{bootstrap}, config))
	defer client.Close()
	producer := Must(sarama.NewSyncProducerFromClient(client))
	partition, offset, err := producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(value)})
	Done(err)
	consumer := Must(sarama.NewConsumerFromClient(client))
	records := Must(consumer.ConsumePartition(topic, partition, offset))
	fmt.Println(string((<-records.Messages()).Value))
}
