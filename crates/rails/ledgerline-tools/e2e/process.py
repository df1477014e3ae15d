"""Prints the template as SAM hands it to CloudFormation."""

import json
import sys

from samcli.yamlhelper import yaml_parse
from samtranslator.translator.transform import transform


class NoManagedPolicies:
    """Every permission is written out in the template: there are no names to look up."""

    def load(self):
        return {}


with open(sys.argv[1]) as file:
    template = yaml_parse(file.read())
template["Globals"]["Function"]["CodeUri"] = "s3://bucket/key"
print(json.dumps(transform(template, {}, NoManagedPolicies()), indent=1))
