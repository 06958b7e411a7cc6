module workerd

go 1.26
