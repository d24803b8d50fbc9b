// A client of ../security: login BOOTSTRAP CA USER PASSWORD TOPIC VALUE. It writes the value, reads it back and prints it; an error ends it.
package main

import (
	"fmt"
	"os"

	"github.com/IBM/sarama"

	. "duramen/compat/gosuite"
	"duramen/compat/sarama/passwords"
)

func main() {
	bootstrap, ca, user, password, topic, value := os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5], os.Args[6]
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	passwords.LogIn(config, Trusted(ca), user, password)
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
